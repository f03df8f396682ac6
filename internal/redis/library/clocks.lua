-- What is written while the clocks differ: the twin of clocks.go, which says how that is read
-- when they agree again.
local clocks = {}

local doubt -- the operation has set a time while the clocks differ

-- Returns by how much the gateway's clock is ahead of the store's, 0 while they agree.
function clocks.lead()
  return skewed and header[HEADER_SENT] - now or 0
end

-- Returns an instant, of the store's clock, by the clock that is ahead.
function clocks.latest(at)
  return at + min(max(0, clocks.lead()), FORGET_AFTER)
end

-- Returns when a time is set, by both clocks; 0, 0 while they agree.
function clocks.set_now()
  if not skewed then
    return 0, 0
  end
  doubt = true
  return now, header[HEADER_SENT]
end

-- Notes that a time of a lease or of a resting place was set while the clocks differed.
function clocks.note(h)
  if h[SENT_AT] > 0 then
    call('hset', prefix .. 'doubt:' .. name, h[LEASE], '')
  end
end

-- Tells whether the store's clock was wrong when a time was set.
function clocks.was_wrong(set, sent)
  if sent > set then
    return now >= sent - header[HEADER_MAX_SKEW]
  end
  return now < set
end
