#!lua flags=allow-oom
-- Makes a provisional lease firm: its TTL starts now.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part; stamp of the request
-- Reply ok with the lease; lease_lost; replaced; quarantined; clock_skew

return rich(now, now_text, skewed, stored)
