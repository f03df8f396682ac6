#!lua flags=allow-oom
-- Ends the lease that has a token, whoever holds it. Breaking one that was just
-- broken succeeds.
--
-- KEYS  as in the prelude
-- ARGV  6 token
-- Reply ok; stale_token with the record; clock_skew

local MAX_BROKEN = 8 -- of a record, for retried breaks

if mode ~= '' and token == ARGV[6] then
  local tokens = {}
  for t in string.gmatch(broken .. ',' .. token, '%d+') do
    tokens[#tokens + 1] = t
  end
  if #tokens > MAX_BROKEN then
    table.remove(tokens, 1)
  end
  broken = table.concat(tokens, ',')
  end_lease('broken', now)
  return finish('ok')
end
if string.find(',' .. broken .. ',', ',' .. ARGV[6] .. ',', 1, true) then
  return finish('ok')
end
if skewed then
  return finish('clock_skew')
end
return finish('stale_token', true)
