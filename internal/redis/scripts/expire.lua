#!lua flags=allow-oom
-- Ends the lease on a name if its time has run out, and puts right an index
-- entry that has no such lease behind it, so that it isn't found due for ever.
--
-- KEYS  as in the prelude
-- ARGV  nothing more
-- Reply ok

if not skewed and record == stored then
  if held then
    call('ZADD', KEYS[3], 'XX', sub(stored, 51, 66), ARGV[3])
  else
    call('ZREM', KEYS[3], ARGV[3])
    call('ZREM', KEYS[4], ARGV[3])
  end
end
return finish('ok')
