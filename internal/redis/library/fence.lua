-- The fence of a name: the marks below which no token is admitted. The twin of fence.go.

-- Returns the highest token that counts as issued. What it answers with is told in the
-- reply: the number is this one, the token the highest that has moved a mark.
local function fence(known)
  number = known and (op[OP_CLAIMED] == 1 and record[LAST_CLAIMED] or record[LAST_TOKEN]) or 0
  token = known and record[HIGHEST_ADMITTED] or 0
  return number
end

-- Returns the holder that has the token, nil if none has that is live.
local function bearer(t)
  local h = holder_with(t)
  return h and not due(h) and (h[CLAIMED] == 1 or op[OP_CLAIMED] == 0) and h or nil
end

-- Returns the lowest token that is not refused for those before it. Marks of slots that
-- are gone were not above the highest, which takes their place.
local function mark(slot)
  local r = record
  if slot == NO_SLOT then
    return max(r[MARK], r[HIGHEST_ADMITTED])
  elseif r[SLOT_MARKS] == 0 then
    return r[MARK]
  end
  local key = prefix .. 'marks:' .. name
  local found = attempt('hmget', key, fmt('%d', slot), 'kept')
  if found.err or not found[2] then
    call('del', key)
    r[MARK], r[SLOT_MARKS] = max(r[MARK], r[HIGHEST_ADMITTED]), 0
  end
  return max(r[MARK], tonumber(not found.err and found[1] or 0))
end

-- Moves the mark of a slot, or that of the name, up to a token. The twin of Record.raise.
local function raise(t, slot)
  local r, key = record, prefix .. 'marks:' .. name
  if slot == NO_SLOT then
    if r[SLOT_MARKS] == 1 then
      call('unlink', key)
    end
    r[MARK], r[SLOT_MARKS] = t, 0
  elseif t > r[MARK] then
    if r[SLOT_MARKS] == 0 then -- what is there is of a record that is gone
      call('del', key)
      call('hset', key, 'kept', '')
    end
    call('hset', key, fmt('%d', slot), fmt('%d', t))
    r[SLOT_MARKS] = 1
  end
  r[HIGHEST_ADMITTED] = max(r[HIGHEST_ADMITTED], t)
  token = r[HIGHEST_ADMITTED]
end

-- Returns the lowest token that is held.
local function lowest_held()
  return sole_holder and sole_holder[TOKEN] or tonumber(call('zrange', prefix .. 'tokens:' .. name, 0, 0, 'withscores')[2])
end

function verbs.admit()
  local known = record and not forgotten()
  if skewed and not known then -- by the right clock it might be remembered
    return 'clock_skew'
  end
  local t, slot = op[OP_TOKEN], op[OP_SLOT]
  local highest_issued, at = fence(known), known and mark(slot) or 0
  if t < at then
    return 'stale_token'
  end
  local h = known and bearer(t)
  if h and slot ~= NO_SLOT and not has_slot(h, slot) then
    return invalid('slot', 0)
  end
  local unsafe = not h or skewed
  unsafe = unsafe and quarantined()
  if unsafe and h then
    return 'clock_skew'
  elseif unsafe then
    return refuse_quarantined(unsafe)
  end
  local to = t
  if known and record[HOLDERS] > 0 and (not h or tolerates(h) == ANY_NUMBER) then
    to = min(to, lowest_held())
  end
  local raised = known and slot == NO_SLOT and record[MARK] or at -- for a slot alone is not for the name
  if not h and (t > highest_issued or t > raised and to < t) then
    return 'stale_token'
  elseif to >= at then
    raise(to, slot)
  end
  return 'ok'
end

-- The twin of step.judge.
function verbs.judge()
  local known, t = record and not forgotten(), op[OP_TOKEN]
  local highest_issued, h = fence(known), known and bearer(t)
  if h and (h[PROVISIONAL] == 1 and alive(h[GATEWAY]) or h[PROVISIONAL] == 0 and live(h)) then
    text = 'live'
  elseif t > highest_issued then
    text = 'unissued'
  elseif t == highest_issued then
    text = 'ended'
  else
    text = 'superseded'
  end
  return 'ok'
end
