-- Follows the prelude in every script that judges the record of a name: reads
-- the record, ends its lease if that has run out, forgets the name if it has
-- been idle for long. Nothing is written before finish(), with which a verb
-- ends, once. All here is about the plain kinds; record.go draws the record:
--
--   1 kind  2 broken, how many  3-18 admitted  19-34 idle_since, of an exclusive one
--   ended  35-50 born
--   51-66 last
--   of a free name      67- broken
--   of an exclusive one 67-82 expires_at  83-125 secret  126-151 lease
--                       152-167 stamp  168-183 acquired_at  184-199 joined_at
--                       200 mode  201 state  202 keep  203- lines, broken

local stored = call('GET', KEYS[1]) -- as it was, false if there was none
local kind = stored and sub(stored, 1, 1) or '-'
local record = stored -- as it is after this step
local held, expires_at = false, 0
local idle_since -- of a free record
local guard -- the partition's, where it changes
local raise -- by how much the counter goes up
local made = false -- whether it was for a grant
local ended -- item of the reply: the lease that this step ended, or a grant it took back
local tombstone, tombstone_key, tombstone_until -- of the lease that this step ended

-- The only predicate of liveness, the twin of fencing.Holder.Live.
local function live()
  return now < expires_at
end

-- Frees the lock. The twin of step.remove.
local function remove(at, at_text)
  local broken = sub(stored, 2, 2)
  idle_since = math.max(expires_at - FORGET_AFTER, at)
  record = '-' .. sub(stored, 2, 18) .. (idle_since == at and at_text or fmt('%016.0f', idle_since)) .. sub(stored, 35, 66)
    .. (broken == '0' and '' or sub(stored, -16 * broken))
  held = false
end

-- Moves the lease to its tombstone: at, last, expires_at, secret, why. key is the
-- tombstone's where it is known. The twin of step.end.
local function end_lease(why, at, at_text, key)
  ended = 'E' .. why .. '\n' .. at_text
  tombstone = at_text .. sub(stored, 51, 125) .. why
  tombstone_key = key or sub(KEYS[5], 1, -27) .. sub(stored, 126, 151)
  tombstone_until = math.max(expires_at, at + TOMBSTONE_TTL)
  remove(at, at_text)
end

-- Makes every write of the script, then replies; with show the record as it now
-- is goes along.
local function finish(code, show)
  if raise then
    call('INCRBY', KEYS[2], raise)
  end
  if guard then
    call('SET', sub(KEYS[2], 1, -6) .. 'guard', guard)
  end
  if tombstone and now < tombstone_until then
    call('SET', tombstone_key, tombstone, 'PX', px(tombstone_until - now, TOMBSTONE_TTL, TOMBSTONE_PX))
  end
  if record ~= stored then
    if held then
      call('SET', KEYS[1], record)
      call('ZADD', KEYS[3], sub(record, 67, 82), ARGV[3])
      if expires_at == 0 then
        call('ZADD', KEYS[4], '0', ARGV[3])
      end
    else
      if record then
        call('SET', KEYS[1], record, 'PX', px(idle_since + FORGET_AFTER - now, FORGET_AFTER, FORGET_PX))
      else
        call('DEL', KEYS[1])
      end
      if expires_at > 0 then
        call('ZREM', KEYS[3], ARGV[3])
        call('ZREM', KEYS[4], ARGV[3])
      end
    end
  end
  if tombstone then
    remember(ended, stored)
  end
  if ended or made then
    redis.set_repl(redis.REPL_NONE) -- replicas have no use for messages; nothing is written from here on
  end
  if ended then
    redis.pcall('PUBLISH', 'fencepost:events', news() .. #ended .. '\n' .. ended .. #stored .. '\n' .. stored
      .. (made and #record .. '\n' .. record or ''))
  elseif made then
    redis.pcall('PUBLISH', 'fencepost:events', news() .. #record .. '\n' .. record)
  end
  if show and record then
    return ended and {head(code), record, ended, stored} or {head(code), record}
  end
  return ended and {head(code), ended, stored} or head(code)
end

if stored and kind ~= 'q' then
  held = kind == 'x'
  if held then
    expires_at = tonumber(sub(stored, 67, 82))
  end
  if not expires_at or not held and kind ~= '-' then
    error('the record ' .. KEYS[1] .. ' is not readable')
  end
  if not skewed then -- under skew nothing is judged by the time
    if held and not live() then
      end_lease('expired', expires_at, sub(stored, 67, 82))
    end
    if not held and sub(record, 19, 34) + FORGET_AFTER <= now then
      record = false
    end
  end
end
