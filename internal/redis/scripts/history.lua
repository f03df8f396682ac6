#!lua flags=allow-oom
-- Reads a name and how its last leases ended. The reader judges what it reads by
-- the reply's now.
--
-- KEYS  as in the prelude
-- ARGV  5 how many holders to show at most
--       6 how many ends to show at most
-- Reply ok with the record, holders, those included that ran out and nobody has noticed,
--       dead gateways and ends, oldest first

local all = show(KEYS[1], tonumber(ARGV[5])) or {}
if all[1] and string.match(all[1], '^q[^\n]*\n(%d+)\n') and tonumber(string.match(all[1], '^q[^\n]*\n(%d+)\n')) > 1 then
  local over = call('ZREVRANGEBYSCORE', string.gsub(KEYS[1], '}:lock:', '}:until:', 1), now_text, '0', 'LIMIT', '0', ARGV[6])
  for _, text in ipairs(#over > 0 and call('HMGET', string.gsub(KEYS[1], '}:lock:', '}:holders:', 1), unpack(over)) or {}) do
    all[#all + 1] = 'H' .. text
  end
end
table.insert(all, 1, head('ok'))
for _, item in ipairs(call('LRANGE', string.gsub(KEYS[1], '}:lock:', '}:history:', 1), -2 * ARGV[6], -1)) do
  all[#all + 1] = item
end
return all
