-- Stands behind record.lua where a lease may have ended before, and in rich().

-- Returns the tombstone of the lease in question, nil if nothing is known (any
-- more).
local function find_tombstone()
  local text = tombstone
  if tombstone_key ~= KEYS[5] then
    text = call('GET', KEYS[5])
  end
  if text and now < math.max(sub(text, 33, 48), sub(text, 1, 16) + TOMBSTONE_TTL) then
    return text
  end
end

-- Says how the lease of a tombstone was lost; last is the last token of the
-- name, 0 if none is known. The twin of step.lostTo.
local function lost_to(text, secret, last)
  local reason = sub(text, 92)
  detail = reason
  if sub(text, 49, 91) ~= secret then
    detail = 'unknown'
  elseif reason == 'expired' then
    local late = fmt('%.0f', now - sub(text, 1, 16))
    detail = 'expired\n' .. late
    if tonumber(last) > tonumber(sub(text, 17, 32)) then
      detail = 'superseded\n' .. late .. '\n' .. last
    end
  end
  return 'lease_lost'
end
