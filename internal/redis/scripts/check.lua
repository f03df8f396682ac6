#!lua
-- Tells whether Redis would run a script that grants: it refuses this one where
-- it would refuse that one, as a replica, out of memory, unable to persist.
--
-- KEYS  as in the prelude
-- ARGV  as in the prelude, with an empty name
-- Reply ok; clock_skew

return head(skewed and 'clock_skew' or 'ok')
