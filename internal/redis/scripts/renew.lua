#!lua
-- Sets the remaining time of a lease, to shorten it too.
--
-- KEYS  as in the prelude
-- ARGV  6 lease, public part   7 secret, its hash
--       8 ttl, us, 0 for the one it was granted with
-- Reply ok with the record and margin; lease_lost; clock_skew

local refused = disown(ARGV[6], ARGV[7])
if refused then
  return finish(refused)
end
if not live() then -- only seen here when skewed: an expiry is not judged then
  return finish('clock_skew')
end
margin = fmt('%.0f', expires_at - now)
local hold, grant_ttl, max_hold, acquired_at, rest = string.match(tail,
  '^([^\n]+)\n[^\n]+\n([^\n]+)\n([^\n]+)\n([^\n]+)\n(.*)$')
local ttl = ARGV[8] ~= '0' and ARGV[8] or grant_ttl
expires_at = now + ttl
if max_hold ~= '0' then
  expires_at = math.min(expires_at, acquired_at + max_hold)
end
tail = hold .. '\n' .. ttl .. '\n' .. grant_ttl .. '\n' .. max_hold .. '\n' .. acquired_at .. '\n' .. rest
changed = true
return finish('ok', true)
