#!lua flags=allow-oom
-- Makes a token that of a live lease: the second phase of a quorum's acquire.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part
--       6 token, 16 digits
-- Reply ok with the lease; stale_token; lease_lost; clock_skew

if kind == 'q' then
  return rich(now, now_text, skewed, stored)
end
local refused = disown(ARGV[5])
if refused then
  return finish(refused)
elseif skewed then
  return finish('clock_skew')
end
local token, highest = tonumber(ARGV[6]), tonumber(call('GET', KEYS[2]) or 0)
if token > MAX_TOKEN or token > highest and token > now + MAX_FLOOR_LEAD then
  detail = 'floor'
  return finish('clock_skew')
elseif string.lower(sub(stored, 201, 201)) == 'c' and ARGV[6] ~= sub(stored, 51, 66) or ARGV[6] <= sub(stored, 19, 34) then
  detail = sub(stored, 51, 66)
  return finish('stale_token')
elseif ARGV[6] < sub(stored, 51, 66) then -- the last token is another one from here on
  return rich(now, now_text, skewed, stored)
end
if token > highest then
  raise = fmt('%.0f', token - highest)
end
record = sub(stored, 1, 50) .. ARGV[6] .. sub(stored, 67, 200)
  .. (string.find(sub(stored, 201, 201), '%u') and 'C' or 'c') .. sub(stored, 202)
return finish('ok', true)
