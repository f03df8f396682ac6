#!lua flags=allow-oom
-- Undoes a grant that could not be delivered. It leaves no tombstone, so the
-- same lease id may be granted again. It does nothing unless the lease still
-- bears the stamp of the request that made the grant.
--
-- KEYS  as in the prelude
-- ARGV  6 lease, public part   7 secret, its hash   8 stamp of the request
-- Reply ok

if mode ~= '' and lease == ARGV[6] and secret == ARGV[7] and ARGV[8] ~= '' and stamp == ARGV[8] then
  remove(now)
end
return finish('ok')
