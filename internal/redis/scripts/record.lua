-- Follows the prelude in every script that judges the record of a name: reads
-- the record, ends its lease if that has run out, forgets the name if it has
-- been idle for long; then come the functions for the verb. Nothing is written
-- before finish(), with which a verb ends, once.

local TOMBSTONE_TTL = 300000000 -- us, fencing.TombstoneTTL
local FORGET_AFTER = 86400000000 -- us, fencing.ForgetAfter
local TOMBSTONE_PX, FORGET_PX = '300000', '86400000' -- the same in ms

local stored = call('GET', KEYS[1]) -- false if there is none
local known = stored and true -- there is a record, after this step
local changed = false -- it is to be written
local counter -- the counter is to be raised to this
local tomb -- a lease that this step ended

-- The record; mode is '' when nobody holds the name. The layout is drawn in
-- record.go. tail is what only renewals look into.
local last, admitted, forget_at, broken, mode, lease, secret, stamp, token, expires_at, tail =
  '0', '0', 0, '', '', '', '', '', '', 0, ''
if stored then
  last, admitted, forget_at, broken, mode, lease, secret, stamp, token, expires_at, tail = string.match(stored,
    '^([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]+)\n(.*)$')
  if not last then
    error('the record ' .. KEYS[1] .. ' is not readable')
  end
  forget_at, expires_at = tonumber(forget_at), tonumber(expires_at)
end
local was_held = mode ~= '' -- the indexes have the name

-- The only predicate of liveness, the twin of fencing.Holder.Live.
local function live()
  return now < expires_at
end

-- Frees the lock. The twin of step.remove.
local function remove(at)
  forget_at = math.max(forget_at, expires_at, at + FORGET_AFTER)
  mode, expires_at, changed = '', 0, true
end

-- Moves the lease to its tombstone. The twin of step.end.
local function end_lease(why, at)
  local at_text = at == now and now_text or fmt('%.0f', at)
  tomb = {lease = lease, secret = secret, token = token, reason = why, at = at, at_text = at_text,
    ends = math.max(expires_at, at + TOMBSTONE_TTL)}
  ended = why .. '\n' .. at_text .. '\n' .. stored
  remove(at)
end

-- Returns how a lease on this name ended, nil if that is not known (any more).
local function tombstone(of)
  local t = tomb
  if not t or t.lease ~= of then
    local text = call('GET', KEYS[5] .. of .. ':' .. ARGV[5])
    if not text then
      return nil
    end
    t = {}
    t.secret, t.token, t.reason, t.at, t.ends = string.match(text, '^([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]+)$')
    t.at, t.ends = tonumber(t.at), tonumber(t.ends) -- fails if the text was another
  end
  return now < t.ends and t or nil
end

-- Says how the lease of a tombstone was lost. The twin of step.lostTo.
local function lost_to(t, with)
  reason = t.reason
  if t.secret ~= with then
    reason = 'unknown'
  elseif reason == 'expired' then
    late = fmt('%.0f', now - t.at)
    if known and tonumber(last) > tonumber(t.token) then
      reason, current_token = 'superseded', last
    end
  end
  return 'lease_lost'
end

-- Returns nil if the lease is the holder's, else the code that refuses it.
-- Without skew it is then live. The twin of step.own.
local function disown(of, with)
  if mode ~= '' and lease == of then
    if secret == with then
      return nil
    end
    reason = 'unknown'
    return 'lease_lost'
  end
  local t = tombstone(of)
  if t and (not skewed or t.reason ~= 'expired') then
    return lost_to(t, with)
  end
  if skewed then
    return 'clock_skew'
  end
  reason = 'unknown'
  return 'lease_lost'
end

-- Keys end by their own TTL only as late garbage collection, and not before the
-- least: what is in them says until when it counts.
local function px(us, least, least_px)
  return us <= least and least_px or fmt('%.0f', math.ceil(us / 1000))
end

-- Makes every write of the script, then replies; with show the record as it now
-- is goes along.
local function finish(code, show)
  if tomb and now < tomb.ends then
    call('SET', KEYS[5] .. tomb.lease .. ':' .. ARGV[5], tomb.secret .. '\n' .. tomb.token .. '\n' .. tomb.reason .. '\n'
      .. tomb.at_text .. '\n' .. fmt('%.0f', tomb.ends),
      'PX', px(tomb.ends - now, TOMBSTONE_TTL, TOMBSTONE_PX))
  end
  if counter then
    call('SET', KEYS[2], counter)
  end
  if not changed then
    return reply(code, show and stored)
  end
  if mode ~= '' then
    local expires_text = fmt('%.0f', expires_at)
    stored = last .. '\n' .. admitted .. '\n' .. (forget_at == 0 and '0' or fmt('%.0f', forget_at)) .. '\n' .. broken .. '\n' .. mode .. '\n'
      .. lease .. '\n' .. secret .. '\n' .. stamp .. '\n' .. token .. '\n' .. expires_text .. '\n' .. tail
    call('SET', KEYS[1], stored)
    call('ZADD', KEYS[3], expires_text, ARGV[5])
    if not was_held then
      call('ZADD', KEYS[4], '0', ARGV[5])
    end
    return reply(code, show and stored)
  end
  if known then
    stored = last .. '\n' .. admitted .. '\n' .. fmt('%.0f', forget_at) .. '\n' .. broken .. '\n\n\n\n\n\n0\n'
    call('SET', KEYS[1], stored, 'PX', px(forget_at - now, FORGET_AFTER, FORGET_PX))
  else
    stored = false
    call('DEL', KEYS[1])
  end
  if was_held then
    call('ZREM', KEYS[3], ARGV[5])
    call('ZREM', KEYS[4], ARGV[5])
  end
  return reply(code, show and stored)
end

-- Under skew nothing is judged by the time.
if known and not skewed then
  if was_held and not live() then
    end_lease('expired', expires_at)
  end
  if mode == '' and forget_at <= now then
    known, changed = false, true
    last, admitted, forget_at, broken = '0', '0', 0, ''
  end
end
