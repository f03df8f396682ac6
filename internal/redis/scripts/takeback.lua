#!lua flags=allow-oom
-- Undoes a grant that could not be delivered. It leaves no tombstone, so the
-- same lease id may be granted again. It does nothing unless the lease still
-- bears the stamp of the request that made the grant.
--
-- KEYS  as in the prelude
-- ARGV  4 claim: secret, its hash; lease, public part; stamp of the request
-- Reply ok

if held and sub(stored, 67, 151) == ARGV[4] and sub(ARGV[4], 70) ~= NO_STAMP then
  remove(now, now_text)
end
return finish('ok')
