#!lua flags=allow-oom
-- Ends the lease on a name if its time has run out, and puts right an index
-- entry that has no such lease behind it, so that it isn't found due for ever.
--
-- KEYS  as in the prelude
-- ARGV  nothing more
-- Reply ok

if not skewed and not changed then
  if mode ~= '' then
    call('ZADD', KEYS[3], 'XX', fmt('%.0f', expires_at), ARGV[5])
  else
    call('ZREM', KEYS[3], ARGV[5])
    call('ZREM', KEYS[4], ARGV[5])
  end
end
return finish('ok')
