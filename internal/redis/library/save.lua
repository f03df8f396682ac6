-- What an operation leaves of its name.

-- Writes the record, and the indexes of names.
local function save()
  local key, r = prefix .. 'lock:' .. name, record
  if r and idle() and (r[LAST_TOKEN] == 0 or not skewed and forgotten()) then -- somebody waited in quarantine, and left
    record, r = false, false
  end
  local busy = r and not idle()
  local due = busy and due_at() or 0
  if r and not busy and r[RETRY_AT] == AFTER_SKEW then -- nothing is left that can be in doubt
    call('del', prefix .. 'doubt:' .. name)
  end
  if r then
    r[INDEXED], r[RETRY_AT] = sole_holder and due == sole_holder[EXPIRES_AT] and 0 or due, busy and r[RETRY_AT] or 0
    if gateway_counts or r[GATEWAYS] ~= '' then
      local all = {}
      for id, g in pairs(gateway_counts or {}) do
        all[#all + 1] = fmt('%s:%d:%d;', id, g.places, g.leases)
      end
      r[GATEWAYS] = concat(all)
    end
  end
  local written = r and write_record(r) .. (sole_holder and sole_holder[LEASE_TEXT] or '')
  if due ~= indexed then
    if due > 0 then
      call('zadd', prefix .. 'expiry', fmt('%d', due), name)
    else
      call('zrem', prefix .. 'expiry', name)
    end
  end
  indexed = due
  local held = r and r[HOLDERS] > 0
  if held and not was_held then
    call('zadd', prefix .. 'names', 0, name)
  elseif was_held and not held then
    call('zrem', prefix .. 'names', name)
  end
  for i = 2, ends and #out or 0, 2 do
    if out[i] == ITEM_END then
      remember(out[i + 1])
    end
  end
  if has_holder_keys and (not r or r[HOLDERS] <= 1) then
    delete_holder_keys()
  end
  if written == stored then
    -- as it was
  elseif busy then
    call('set', key, written)
    if r[SLOT_MARKS] == 1 then
      call('persist', prefix .. 'marks:' .. name)
    end
  elseif r then
    local kept = keep_ms(r[FORGET_AT] - now, FORGET_AFTER, FORGET_MS)
    call('set', key, written, 'px', kept)
    if r[SLOT_MARKS] == 1 then
      call('pexpire', prefix .. 'marks:' .. name, kept)
    end
  else
    call('unlink', key, prefix .. 'marks:' .. name, prefix .. 'doubt:' .. name)
  end
end
