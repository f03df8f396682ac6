-- The twin of fencing.Queue: places are holdings to be.

local queue = {
  PLACES = t.prefix .. 'places:' .. t.name, ORDER = t.prefix .. 'queue:' .. t.name,
  RESTING = t.prefix .. 'resting:' .. t.name, BY_GATEWAY = t.prefix .. 'by_gateway:' .. t.name,
}

-- Returns what BY_GATEWAY has of a connected place: the first 16 characters are the
-- gateway, and those of one gateway are in the order of the queue.
function queue.of_gateway(p)
  return fmt('%s%016.0f%s', p.gateway, p.seq, p.lease)
end

-- Returns the place of a lease, connected or resting, nil if it has none.
function queue.find(lease)
  local r = t.record
  local text = r and r.queued + r.resting > 0 and call('HGET', queue.PLACES, lease)
  local p = text and record.parse(text) or nil
  if p and p.expires_at > 0 and p.expires_at <= now and not skewed then -- its rest is over, and the step has not come to it
    queue.remove(p, true)
    return nil
  end
  return p
end

-- Returns the first of the connected places.
function queue.first()
  return queue.find(call('ZRANGE', queue.ORDER, 0, 0)[1])
end

-- Returns the place among the connected ones, from 1.
function queue.position(p)
  return call('ZRANK', queue.ORDER, p.lease) + 1
end

-- Puts a connected place where its seq belongs.
function queue.enter(p)
  local r = t.record
  p.expires_at = 0
  call('HSET', queue.PLACES, p.lease, record.text_of(p))
  call('ZADD', queue.ORDER, fmt('%.0f', p.seq), p.lease)
  call('ZADD', queue.BY_GATEWAY, '0', queue.of_gateway(p))
  r.queue_last = math.max(r.queue_last, p.seq)
  r.queued = r.queued + 1
  record.count(p.gateway, 1, 0)
end

-- Puts a place that is not in the queue to rest.
function queue.rest(p)
  local REST_TTL = 10000000 -- us, fencing.RestTTL
  local r = t.record
  p.expires_at = now + REST_TTL
  call('HSET', queue.PLACES, p.lease, record.text_of(p))
  call('ZADD', queue.RESTING, fmt('%.0f', p.expires_at), p.lease)
  r.queue_last = math.max(r.queue_last, p.seq)
  r.rest_till = r.resting == 0 and p.expires_at or math.min(r.rest_till, p.expires_at)
  r.resting = r.resting + 1
end

-- Takes a place out, a connected one or one that rests.
function queue.remove(p, rests)
  local r = t.record
  call('HDEL', queue.PLACES, p.lease)
  if rests then
    call('ZREM', queue.RESTING, p.lease)
    r.resting = r.resting - 1
  else
    call('ZREM', queue.ORDER, p.lease)
    call('ZREM', queue.BY_GATEWAY, queue.of_gateway(p))
    r.queued = r.queued - 1
    record.count(p.gateway, -1, 0)
  end
  if r.queued + r.resting == 0 then
    r.queue_last = 0
  end
end

-- Drops places whose rest is over, those first that were over first. The twin of
-- Queue.wake.
function queue.wake()
  local r = t.record
  if r.resting == 0 or now < r.rest_till then
    return
  end
  local over = call('ZRANGEBYSCORE', queue.RESTING, '-inf', now_text, 'LIMIT', '0', t.room + 1)
  if #over > t.room then
    t.more = true
    over[#over] = nil
  end
  t.room = t.room - #over
  for _, lease in ipairs(over) do
    call('HDEL', queue.PLACES, lease)
    call('ZREM', queue.RESTING, lease)
  end
  r.resting = r.resting - #over
  r.rest_till = r.resting > 0 and tonumber(call('ZRANGE', queue.RESTING, 0, 0, 'WITHSCORES')[2]) or 0
  if r.queued + r.resting == 0 then
    r.queue_last = 0
  end
end

-- Notes that a connected place has left the queue; it may rest. The twin of
-- step.departed.
function queue.departed(p)
  local left = t.left
  left[#left + 1] = 'L'
  left[#left + 1] = p.text
  if p.keep == 'k' then
    queue.rest(p)
  end
end

-- Takes a connected place out of the queue. The twin of step.depart.
function queue.depart(p)
  queue.remove(p)
  queue.departed(p)
end

-- Takes the waiters of dead gateways out, the first in the queue first. The twin
-- of step.dropDead. It reads no more than may be taken out, and one.
function queue.drop_dead()
  local found = {} -- their seqs and leases
  for id, g in pairs(t.record.gateways) do
    if g.places > 0 and not gateways.alive(id) then
      for _, text in ipairs(call('ZRANGEBYLEX', queue.BY_GATEWAY, '[' .. id, '(' .. id .. ':', 'LIMIT', '0', t.room + 1)) do -- ':' is behind all digits
        found[#found + 1] = sub(text, 17)
      end
    end
  end
  table.sort(found)
  local leases = {}
  for i = 1, math.min(#found, t.room) do
    leases[i] = sub(found[i], 17)
  end
  if #found > t.room then
    t.more = true
  end
  if #leases == 0 then
    return
  end
  t.room = t.room - #leases
  local removed = call('HMGET', queue.PLACES, unpack(leases))
  for i, text in ipairs(removed) do
    removed[i] = record.parse(text)
    queue.remove(removed[i])
  end
  for _, p in ipairs(removed) do
    queue.departed(p)
  end
end
