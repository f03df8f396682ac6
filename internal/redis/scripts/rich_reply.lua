-- What a step leaves in the store, tells others and replies.

local reply = {}

-- Makes the lease the caller's answer.
function reply.holds(h)
  t.items[#t.items + 1] = 'O' .. h.text
end

-- Makes the place the caller's answer.
function reply.waits(p)
  t.items[#t.items + 1] = 'P' .. queue.position(p) .. '\n' .. p.text
end

-- Adds what the public view of the name is made of, with its record as text.
function reply.view(text)
  local MAX_SHOWN = 100 -- fencing.MaxHoldersShown
  local items, leases = t.items, {}
  items[#items + 1] = text
  if next(t.record.gateways) then
    gateways.load(t.record.gateways)
  end
  for id, g in pairs(t.record.gateways) do
    leases[id] = g.leases
    if not gateways.alive(id) then
      items[#items + 1] = 'D' .. id
    end
  end
  if t.record.n > 1 then
    show_holders(items, t.name, leases, MAX_SHOWN)
  end
end

-- Returns when expire.lua has something to do here. The twin of State.Due.
function reply.due()
  local r, at = t.record, math.huge
  if r.one then
    at = r.one.provisional and at or r.one.expires_at
  elseif r.n > 1 then
    at = tonumber(call('ZRANGEBYSCORE', holders.UNTIL, '0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or at)
  end
  if next(r.gateways) then
    gateways.load(r.gateways)
    for id in pairs(r.gateways) do
      at = math.min(at, gateways.lapse(id))
    end
  end
  if r.resting > 0 then
    at = math.min(at, r.rest_till)
  end
  return r.stuck > 0 and math.min(at, r.stuck) or at
end

-- Writes the record, and returns it as text.
function reply.save()
  local r = t.record
  if t.counter and t.counter > t.highest then
    call('INCRBY', KEYS[2], fmt('%.0f', t.counter - t.highest))
  end
  if t.guard ~= t.guarded then
    call('SET', GUARD, t.guard)
  end
  if r and r.last == '0000000000000000' and r.n + r.queued + r.resting == 0 then -- somebody waited in quarantine, and left
    t.record, r = false, false
  end
  local text = r and record.encode()
  local is_due = r and sub(text, 1, 1) ~= '-'
  if text == stored then
    -- as it was
  elseif is_due then
    call('SET', KEYS[1], text)
  elseif r then
    call('SET', KEYS[1], text, 'PX', px(r.idle_since + FORGET_AFTER - now, FORGET_AFTER, FORGET_PX))
  else
    call('DEL', KEYS[1])
  end
  if is_due then
    call('ZADD', KEYS[3], fmt('%.0f', reply.due()), t.name)
  elseif t.was_due then
    call('ZREM', KEYS[3], t.name)
  end
  local is_held = r and r.n > 0
  if is_held and not t.was_held then
    call('ZADD', KEYS[4], '0', t.name)
  elseif t.was_held and not is_held then
    call('ZREM', KEYS[4], t.name)
  end
  return text
end

-- Adds items as a message has them: see message.go.
function reply.message(into, all)
  for i = 1, #all do
    into[#into + 1] = #all[i] .. '\n'
    into[#into + 1] = all[i]
  end
end

-- Tells those who watch, and each other gateway whose waiters are concerned.
function reply.tell()
  redis.set_repl(redis.REPL_NONE) -- replicas have no use for messages; nothing is written from here on
  local all = {}
  for _, some in ipairs({t.ended, t.left, t.granted, {t.joined or nil}}) do
    reply.message(all, some)
  end
  if #all > 0 then
    redis.pcall('PUBLISH', 'fencepost:events', news() .. table.concat(all))
  end
  local others = {}
  for i, h in ipairs(t.leases) do
    if h.gateway ~= t.me then
      others[h.gateway] = others[h.gateway] or {}
      reply.message(others[h.gateway], {t.granted[i]})
    end
  end
  local was = t.replaced
  if was and was.gateway ~= t.me then
    others[was.gateway] = others[was.gateway] or {}
    reply.message(others[was.gateway], {'X' .. was.stamp})
  end
  for id, some in pairs(others) do
    redis.pcall('PUBLISH', 'fencepost:gateway:' .. id, now_text .. t.name .. '\n' .. table.concat(some))
  end
end

-- Ends the step: writes, tells and replies.
function reply.finish(code)
  local text = reply.save()
  if t.record and t.record.stuck == AT_ONCE and not skewed then
    flags = flags .. 'm'
  end
  if t.shows and text then
    reply.view(text)
  end
  reply.tell()
  local all = {head(code)}
  for _, some in ipairs({t.items, t.ended, t.left, t.granted}) do
    for i = 1, #some do
      all[#all + 1] = some[i]
    end
  end
  if t.replaced then
    all[#all + 1] = 'X' .. t.replaced.gateway .. t.replaced.stamp
  end
  return all
end

-- Ends a step that may have freed something: that is handed on.
local function conclude(code)
  rules.hand_off()
  return reply.finish(code)
end
