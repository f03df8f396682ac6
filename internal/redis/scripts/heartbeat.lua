#!lua flags=allow-oom
-- Says that a gateway lives, and returns what it may have missed. The twin of
-- fencing.Beat.
--
-- KEYS  as in the prelude
-- ARGV  as in the prelude, with an empty name; 5 how many due names to return
-- Reply ok with the provisional leases of the gateway and the names where
--       something is due, with the flag 'l' if the gateway was not known or counted
--       as dead; clock_skew

if skewed then
  return head('clock_skew')
end
local me = gateways.me
gateways.load({})
if not gateways.seen[me] or now >= gateways.lapse(me) then
  flags = 'l'
end
gateways.hear(true)

local items = {head('ok')}
local leases = call('HGETALL', gateways.prefix .. 'unconfirmed:' .. me)
for i = 1, #leases, 2 do
  items[#items + 1] = 'U' .. sub(leases[i], 27) .. '\n' .. leases[i + 1]
end
for _, name in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', now_text, 'LIMIT', '0', ARGV[5])) do
  items[#items + 1] = 'T' .. name
end
return items
