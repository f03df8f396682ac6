#!lua flags=allow-oom
-- Ends a lease at its holder's wish. One that was released before is released
-- again.
--
-- KEYS  as in the prelude
-- ARGV  6 lease, public part   7 secret, its hash
-- Reply ok; lease_lost; clock_skew

local refused = disown(ARGV[6], ARGV[7])
if not refused then
  end_lease('released', now)
elseif reason == 'released' then
  reason = ''
else
  return finish(refused)
end
return finish('ok')
