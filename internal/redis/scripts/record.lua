-- Follows the prelude in every script that judges the record of a name: reads
-- the record, ends its lease if that has run out, forgets the name if it has
-- been idle for long. Nothing is written before finish(), with which a verb
-- ends, once. record.go draws the record:
--
--   1 kind  2 broken, how many  3-18 admitted  19-34 idle_since  35-50 last
--   of a free name      51- broken
--   of an exclusive one 51-66 expires_at  67-109 secret  110-135 lease
--                       136-151 stamp  152-167 acquired_at  168- tail, broken

local TOMBSTONE_TTL = 300000000 -- us, fencing.TombstoneTTL
local FORGET_AFTER = 86400000000 -- us, fencing.ForgetAfter
local TOMBSTONE_PX, FORGET_PX = '300000', '86400000' -- the same in ms
local NEW = 'x000000000000000000000000000000000' -- how the first record of a name begins
local NO_STAMP = '----------------'

local stored = call('GET', KEYS[1]) -- as it was, false if there was none
local record = stored -- as it is after this step
local held, expires_at = false, 0
local idle_since -- of a free record
local raise -- by how much the counter goes up
local tombstone, tombstone_key, tombstone_until -- of a lease that this step ended

-- The only predicate of liveness, the twin of fencing.Holder.Live.
local function live()
  return now < expires_at
end

-- Frees the lock. The twin of step.remove.
local function remove(at, at_text)
  local broken = sub(stored, 2, 2)
  idle_since = math.max(sub(stored, 19, 34), expires_at - FORGET_AFTER, at)
  record = '-' .. sub(stored, 2, 18) .. (idle_since == at and at_text or fmt('%016.0f', idle_since)) .. sub(stored, 35, 50)
    .. (broken == '0' and '' or sub(stored, -16 * broken))
  held = false
end

-- Moves the lease to its tombstone: at, last, expires_at, secret, why. key is the
-- tombstone's where it is known. The twin of step.end.
local function end_lease(why, at, at_text, key)
  ended = why
  tombstone = at_text .. sub(stored, 35, 109) .. why
  tombstone_key = key or sub(KEYS[5], 1, -27) .. sub(stored, 110, 135)
  tombstone_until = math.max(expires_at, at + TOMBSTONE_TTL)
  remove(at, at_text)
end

-- Keys end by their own TTL only as late garbage collection, and not before the
-- least: what is in them says until when it counts.
local function px(us, least, least_px)
  return us <= least and least_px or fmt('%.0f', math.ceil(us / 1000))
end

-- Makes every write of the script, then replies; with show the record as it now
-- is goes along.
local function finish(code, show)
  if raise then
    call('INCRBY', KEYS[2], raise)
  end
  if tombstone and now < tombstone_until then
    call('SET', tombstone_key, tombstone, 'PX', px(tombstone_until - now, TOMBSTONE_TTL, TOMBSTONE_PX))
  end
  if record ~= stored then
    if held then
      call('SET', KEYS[1], record)
      call('ZADD', KEYS[3], sub(record, 51, 66), ARGV[3])
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
  return reply(code, show and record, tombstone and stored)
end

if stored then
  local kind = sub(stored, 1, 1)
  held = kind == 'x'
  if held then
    expires_at = tonumber(sub(stored, 51, 66))
  end
  if not expires_at or not held and kind ~= '-' then
    error('the record ' .. KEYS[1] .. ' is not readable')
  end
  if not skewed then -- under skew nothing is judged by the time
    if held and not live() then
      end_lease('expired', expires_at, sub(stored, 51, 66))
    end
    if not held and sub(record, 19, 34) + FORGET_AFTER <= now then
      record = false
    end
  end
end
