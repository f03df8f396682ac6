#!lua flags=allow-oom
-- Reads a name, with the first of its waiters. The reader judges what it reads by
-- the reply's now.
--
-- KEYS  as in the prelude
-- ARGV  5 how many holders to show at most
--       6 how many waiters of live gateways to show at most
-- Reply ok with the record, holders, dead gateways and waiters

local all = show(KEYS[1], tonumber(ARGV[5])) or {}
table.insert(all, 1, head('ok'))
local queue, places = string.gsub(KEYS[1], '}:lock:', '}:queue:', 1), string.gsub(KEYS[1], '}:lock:', '}:places:', 1)
if #all == 1 or sub(all[2], 1, 1) ~= 'q' then
  return all
end
local dead = {}
for i = 3, #all do
  if sub(all[i], 1, 1) == 'D' then
    dead[sub(all[i], 2)] = true
  end
end
local left, chunk = tonumber(ARGV[6]), 100
for from = 0, math.huge, chunk do
  local leases = call('ZRANGE', queue, from, from + chunk - 1)
  if #leases == 0 or left == 0 then
    return all
  end
  for _, text in ipairs(call('HMGET', places, unpack(leases))) do
    if left > 0 and not dead[sub(text, 153, 168)] then
      all[#all + 1], left = 'W' .. text, left - 1
    end
  end
end
