#!lua flags=allow-oom
-- Reads a name and how its last leases ended. The reader judges what it reads by
-- the reply's now.
--
-- KEYS  as in the prelude
-- ARGV  5 how many ends to show at most
-- Reply ok with the record, holders, dead gateways and ends, oldest first

local all = show(KEYS[1]) or {}
table.insert(all, 1, head('ok'))
for _, item in ipairs(call('LRANGE', string.gsub(KEYS[1], '}:lock:', '}:history:', 1), -2 * ARGV[5], -1)) do
  all[#all + 1] = item
end
return all
