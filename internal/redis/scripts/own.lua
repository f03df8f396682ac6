-- Follows lost.lua in the verbs that are the holder's.

-- Returns nil if the lease is the holder's, else the code that refuses it. The
-- claim is its secret and public part. Without skew it is then live. The twin of
-- step.own.
local function disown(claim)
  if held and sub(stored, 83, 151) == claim then
    return nil
  end
  if held and sub(stored, 126, 151) == sub(claim, 44) then
    detail = 'unknown'
    return 'lease_lost'
  end
  local text = find_tombstone()
  if text and (not skewed or sub(text, 92) ~= 'expired') then
    return lost_to(text, sub(claim, 1, 43), record and sub(record, 51, 66) or 0)
  end
  if skewed then
    return 'clock_skew'
  end
  detail = 'unknown'
  return 'lease_lost'
end
