-- A call: its header, then operations.

-- What is about no name, and what leaves its name as it is.
local about_no_name = {heartbeat = true, check = true, arrive = true}
local published = {ITEM_END, ITEM_LEFT, ITEM_EVICTED, ITEM_GRANT}
local reads_only = {inspect = true, list = true, history = true, judge = true, index = true}

-- Adds what the operation has changed to what all who watch are told: what ended, who
-- left or was evicted, what was granted, and who was given notice or has joined, in this order. A claim is
-- told like a grant.
local function publish()
  local n = #out
  if n == 1 and not joined then
    return
  end
  if watched == nil then -- on a Cluster they may listen at any node
    local listeners = header[HEADER_CLUSTER] == 0 and attempt('pubsub', 'numsub', EVENTS_CHANNEL)
    watched = not listeners or listeners[2] ~= 0
  end
  if not watched then
    return
  end
  events = events or {}
  local start = #events + 1
  local at = start
  events[at] = ITEM_NAME .. name .. '\0'
  for _, letter in ipairs(published) do
    for i = 2, n, 2 do
      if out[i] == letter then
        events[at + 1], events[at + 2] = letter, out[i + 1]
        at = at + 2
      end
    end
  end
  if newly_claimed then
    events[at + 1], events[at + 2] = ITEM_GRANT, newly_claimed
  elseif noticed then
    events[at + 1], events[at + 2] = ITEM_NOTICE, noticed
  elseif joined then
    events[at + 1], events[at + 2] = ITEM_JOINED, joined
  elseif at == start then
    events[at] = nil
  end
end

-- Does what the operation is about: the twin of fencing.Step, but that nothing is done
-- by expire before something is due, for looking after a name is a sign of life.
local function step(verb)
  load_record()
  if reads_only[verb] then
    if not skewed and clocks.doubtful() then
      clocks.put_right()
      save()
    end
    return verbs[verb]()
  end
  left, more = budget, false
  local expires = verb == 'expire'
  if record and record[RETRY_AT] == AT_ONCE and not expires then
    left = 0 -- an expire goes on with it: many other operations at once are not to do so as well
  end
  local room, is_due = left, not (expires and record and not skewed and now < (idle() and record[FORGET_AT] or due_at()))
  if is_due then
    settle()
  end
  local code = verbs[verb]()
  if is_due then
    hand_off()
  end
  save()
  budget = budget - max(room - left, 0)
  if expires and record and not idle() then
    number = max(indexed - now, 0)
  end
  if record and record[RETRY_AT] == AT_ONCE and not skewed then
    flags = flags .. FLAG_MORE
  end
  publish()
  return code
end

-- Adds what the operation tells other gateways to the messages of the call.
local function queue_messages()
  outbox = outbox or {}
  for i = 1, #notices, 3 do
    local gateway = notices[i]
    local message = outbox[gateway] or {pack('>I7', now)}
    message[#message + 1] = ITEM_NAME .. name .. '\0' .. notices[i + 1] .. notices[i + 2]
    outbox[gateway] = message
  end
end

-- Carries out one operation and returns what it came to.
local function operate(blob)
  op = {unpack(OP_FORMAT, blob)}
  op_text, name = blob, op[OP_NAME]
  flags, number, token, text, present = mend_flags, 0, 0, '', ''
  out, joined, newly_claimed, noticed, notices, doubt = {''}, nil, nil, nil, nil, false
  stored, record, sole_holder, has_holder_keys, ends, gateway_counts, was_held, indexed = false, false, nil, false, false, nil, false, 0
  local verb = op[OP_VERB]
  local code = about_no_name[verb] and verbs[verb]() or step(verb)
  if notices then
    queue_messages()
  end
  out[1] = pack(REPLY_FORMAT, code, flags, number, token, text, present)
  return concat(out)
end

-- Begins a call.
local function begin(keys, args)
  fetch()
  header = {unpack(HEADER_FORMAT, args[1])}
  prefix, me, budget = sub(keys[1], 1, -6), header[HEADER_GATEWAY], header[HEADER_STEP_LIMIT]
  now = header[HEADER_NOW]
  if now == 0 then
    local clock = call('time')
    now = clock[1] * 1000000 + clock[2]
  end
  skewed = math.abs(now - header[HEADER_SENT]) > header[HEADER_MAX_SKEW]
  counter, counted, guard, guard_changed, signs, watched, events, outbox = false, false, nil, false, nil, nil, nil, nil
end

-- Writes what the operations share, and tells others. Messages are sent by
-- redis.pcall: who may not send one is told of it elsewhere.
local function finish()
  if counter ~= counted then
    call('set', prefix .. 'token', fmt('%d', counter))
  end
  if guard_changed and guard then
    call('set', prefix .. 'guard', pack(GUARD_FORMAT, spread(guard, 1, GUARD_SIZE)))
  end
  events = events and #events > 0 and events
  if not events and not outbox then
    return
  end
  local steps = events and header[HEADER_NOW] > 0 and call('incr', prefix .. 'token:steps') or 0 -- a test's clock stands still
  redis.set_repl(redis.REPL_NONE) -- replicas have no use for messages; nothing is written from here on
  if events then
    attempt('publish', EVENTS_CHANNEL, pack('>sI7I7', prefix, steps, now) .. concat(events))
  end
  for gateway, message in pairs(outbox or {}) do
    attempt('publish', GATEWAY_CHANNEL .. gateway, concat(message))
  end
end

local function run(keys, args)
  begin(keys, args)
  local replies = {pack('>I7B', now, skewed and 1 or 0)}
  for i = 2, #args do
    mend_flags = ''
    local ok, reply = pcall(operate, args[i]) -- a record that can't be read harms no other operation
    if not ok and may_be_damage(reply) then
      local looked, found = pcall(mend)
      if not looked then
        reply = found
      elseif found then
        ok, reply = pcall(operate, args[i])
      end
    end
    if not ok then
      if op and op[OP_VERB] == 'expire' then -- so that it does not stand before what can be done
        attempt('zadd', prefix .. 'expiry', 'xx', fmt('%d', now + 60 * HEARTBEAT), name)
      end
      reply = pack(REPLY_FORMAT, 'failed', '', 0, 0, type(reply) == 'table' and reply.err or tostring(reply), '')
    end
    replies[i] = reply
  end
  finish()
  return replies
end
