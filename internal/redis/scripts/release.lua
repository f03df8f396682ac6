#!lua flags=allow-oom
-- Ends a lease at its holder's wish, or unwinds its hold. One that was released
-- before is released again.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part; behind them hold, the depth
--         to unwind, if that is not to end the lease, or the stamp of the stream
--         that has closed: stamp, newline, hold; either may be missing
-- Reply ok, with the lease if holds remain; lease_lost; clock_skew

if kind == 'q' or #ARGV[5] > 69 then
  return rich(now, now_text, skewed, stored)
end
local refused = disown(ARGV[5])
if not refused then
  end_lease('released', now, now_text, KEYS[5])
elseif detail == 'released' then
  detail = ''
else
  return finish(refused)
end
return finish('ok')
