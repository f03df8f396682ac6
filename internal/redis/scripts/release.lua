#!lua flags=allow-oom
-- Ends a lease at its holder's wish. One that was released before is released
-- again.
--
-- KEYS  as in the prelude
-- ARGV  4 claim: secret, its hash; lease, public part
-- Reply ok; lease_lost; clock_skew

local refused = disown(ARGV[4])
if not refused then
  end_lease('released', now, now_text, KEYS[5])
elseif detail == 'released' then
  detail = ''
else
  return finish(refused)
end
return finish('ok')
