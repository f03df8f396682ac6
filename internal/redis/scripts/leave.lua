#!lua flags=allow-oom
-- Gives up a place. If the lease came first, that is the answer.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part; stamp of the request
-- Reply ok with the place and the record, the lease, or neither; replaced;
--       clock_skew

return rich(now, now_text, skewed, stored)
