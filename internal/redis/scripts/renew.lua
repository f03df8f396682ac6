#!lua flags=allow-oom
-- Sets the remaining time of a lease, to shorten it too, and may make an
-- exclusive lease shared. From then on its holder was told of the grant: see takeback.lua.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part
--       6 ttl, us, 0 for the one it was granted with
--       7 mode: '' keeps it; x; s and the limit
-- Reply ok with the lease; lease_lost; invalid_request; clock_skew

if kind == 'q' or sub(ARGV[7], 1, 1) == 's' then
  return rich(now, now_text, skewed, stored)
end
local refused = disown(ARGV[5])
if refused then
  return finish(refused)
end
if not live() then -- only seen here when skewed: an expiry is not judged then
  return finish('clock_skew')
end
local first, grant_ttl, max_hold, rest = string.match(stored, '^(%w*\n%d*\n%d+\n%-?%d+\n%d+\n)%d+\n(%d+)\n(%d+)\n(.*)$', 203)
local ttl = ARGV[6] ~= '0' and ARGV[6] or grant_ttl
local deadline = now + ttl -- also out of skew: the twin says why
if max_hold ~= '0' then
  deadline = math.min(deadline, sub(stored, 168, 183) + max_hold)
end
detail = fmt('%.0f', expires_at - now)
local stored_guard = call('GET', GUARD)
guard = stored_guard and used(stored_guard, deadline - now)
if guard == stored_guard then
  guard = nil
end
record = sub(stored, 1, 66) .. fmt('%016.0f', deadline) .. sub(stored, 83, 200)
  .. string.upper(sub(stored, 201, 201)) .. sub(stored, 202, 202) .. first .. ttl .. '\n' .. grant_ttl .. '\n' .. max_hold .. '\n' .. rest
return finish('ok', true)
