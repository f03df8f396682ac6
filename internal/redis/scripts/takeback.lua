#!lua flags=allow-oom
-- Undoes what a request has got, a grant that could not be delivered or a place.
-- It leaves no tombstone, so the same lease id may be granted again. It does
-- nothing unless the lease still bears the stamp of the request, nor if it was renewed.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part; stamp of the request;
--         behind them p if only a provisional lease may be taken back, r if also one
--         that was renewed
-- Reply ok

if kind == 'q' or held and sub(stored, 202, 202) == 'k' then
  return rich(now, now_text, skewed, stored)
end
local claim, which = sub(ARGV[5], 1, 85), sub(ARGV[5], 86)
if held and sub(stored, 83, 167) == claim and sub(claim, 70) ~= NO_STAMP and which ~= 'p'
  and (which == 'r' or not string.find(sub(stored, 201, 201), '%u')) then
  ended = 'L'
  remove(now, now_text)
end
return finish('ok')
