#!lua
-- Sets the remaining time of a lease, to shorten it too. From then on nobody may
-- take the grant back: its holder was told of it.
--
-- KEYS  as in the prelude
-- ARGV  4 claim: secret, its hash; lease, public part
--       5 ttl, us, 0 for the one it was granted with
-- Reply ok with the record; lease_lost; clock_skew

local refused = disown(ARGV[4])
if refused then
  return finish(refused)
end
if not live() then -- only seen here when skewed: an expiry is not judged then
  return finish('clock_skew')
end
local grant_ttl, max_hold, rest = string.match(stored, '^%d+\n(%d+)\n(%d+)\n(.*)$', 168)
local ttl = ARGV[5] ~= '0' and ARGV[5] or grant_ttl
local deadline = now + ttl
if max_hold ~= '0' then
  deadline = math.min(deadline, sub(stored, 152, 167) + max_hold)
end
detail = fmt('%.0f', expires_at - now)
record = sub(stored, 1, 50) .. fmt('%016.0f', deadline) .. sub(stored, 67, 135) .. NO_STAMP .. sub(stored, 152, 167)
  .. ttl .. '\n' .. grant_ttl .. '\n' .. max_hold .. '\n' .. rest
return finish('ok', true)
