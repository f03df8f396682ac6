#!lua flags=allow-oom
-- Does what time has brought about on a name, and puts right an index entry that
-- has nothing behind it, so that it isn't found due for ever.
--
-- KEYS  as in the prelude
-- ARGV  nothing more
-- Reply ok, with the us until something is due

if kind == 'q' then
  return rich(now, now_text, skewed, stored)
end
if not skewed and record == stored then
  if held then
    detail = fmt('%.0f', expires_at - now)
    call('ZADD', KEYS[3], 'XX', sub(stored, 67, 82), ARGV[3])
  else
    call('ZREM', KEYS[3], ARGV[3])
    call('ZREM', KEYS[4], ARGV[3])
  end
end
return finish('ok')
