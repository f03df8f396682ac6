#!lua flags=allow-oom
-- Ends the lease that has a token, whoever holds it. Breaking one that was just
-- broken succeeds.
--
-- KEYS  as in the prelude
-- ARGV  5 token, 16 digits
-- Reply ok; stale_token with the record; clock_skew

if kind == 'q' then
  return rich(now, now_text, skewed, stored)
end
local count = record and tonumber(sub(record, 2, 2)) or 0
local broken = count > 0 and sub(record, -16 * count) or ''
if held and sub(stored, 51, 66) == ARGV[5] then
  broken = sub(broken .. ARGV[5], -16 * MAX_BROKEN)
  end_lease('broken', now, now_text)
  record = '-' .. #broken / 16 .. sub(record, 3, 66) .. broken
  return finish('ok')
end
for i = 1, #broken, 16 do
  if sub(broken, i, i + 15) == ARGV[5] then
    return finish('ok')
  end
end
if skewed then
  return finish('clock_skew')
end
return finish('stale_token', true)
