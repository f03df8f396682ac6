-- The rich twin of own.lua.

local claims = {}

-- Tells whether a holder or place is the claim's.
function claims.fit(h, claim)
  return h.secret == sub(claim, 1, 43)
end

function claims.tombstone(text, claim)
  return lost_to(text, sub(claim, 1, 43), t.record and t.record.last or 0)
end

-- Returns the holder of the claim's lease, or nil and the code that refuses it.
-- The twin of step.own.
function claims.own(claim)
  local h = rules.find(sub(claim, 44, 69))
  if h then
    if claims.fit(h, claim) then
      return h
    end
    detail = 'unknown'
    return nil, 'lease_lost'
  end
  local text = find_tombstone()
  if text and (not skewed or sub(text, 92) ~= 'expired') then
    return nil, claims.tombstone(text, claim)
  end
  if skewed then
    return nil, 'clock_skew'
  end
  detail = 'unknown'
  return nil, 'lease_lost'
end
