-- The twin of fencing.Step for whatever is not plain, behind words.lua, lost.lua
-- and gateways.lua in rich(now, now_text, skewed, stored). It starts from the
-- record as it is stored, writes queues and holders as it goes, and the record
-- itself in conclude(), with which a verb ends, once.
--
-- What functions share is in few tables, and their names are declared late:
-- making a function costs for each local it uses, and more for the early ones.

local call, sub, fmt, now = call, sub, fmt, now
local gateways = gateways

-- The step under way.
local t = {
  name = ARGV[3], prefix = gateways.prefix, me = gateways.me,
  record = false, -- false if nothing is remembered of the name
  was_held = false, was_due = false, -- what the indexes say of it
  guard = nil, guarded = nil, -- the partition's, as it now is and as it is stored; nil until read
  counter = false, highest = 0, -- the highest token issued, as it now is and as it is stored
  items = {}, ended = {}, left = {}, granted = {}, -- items of the reply
  leases = {}, -- the holders of granted
  joined = false, -- the item of a place that was joined
  replaced = false, -- a request that waited until now
  shows = false, -- the public view of the name is part of the reply
  room = tonumber(sub(ARGV[2], 18, 21)), -- what is left of the step's limit
  more = false, -- something is due that is beyond the limit
}

local record = {}
local AT_ONCE = 1 -- stuck of a name on which a step has left something to do, fencing.atOnce

-- Reads a holding: see record.go. Its text is how it is stored.
function record.parse(text)
  local h = {
    text = text,
    token = sub(text, 1, 16), expires_at = tonumber(sub(text, 17, 32)),
    secret = sub(text, 33, 75), lease = sub(text, 76, 101), stamp = sub(text, 102, 117),
    acquired_at = tonumber(sub(text, 118, 133)), joined_at = tonumber(sub(text, 134, 149)),
    mode = sub(text, 150, 150), provisional = sub(text, 151, 151) == 'p', claimed = string.lower(sub(text, 151, 151)) == 'c',
    told = string.find(sub(text, 151, 151), '%u') ~= nil, keep = sub(text, 152, 152),
    gateway = '', seq = 0, limit = '', slot = '', hold = '', ttl = '', grant_ttl = '', max_hold = '', set = '', rest = '', attached = '',
  }
  local seq
  h.gateway, seq, h.limit, h.slot, h.hold, h.ttl, h.grant_ttl, h.max_hold, h.set, h.rest = string.match(text,
    '^(%w*)\n(%d*)\n(%d+)\n(%-?%d+)\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n([^\n]*)\n(.*)$', 153)
  if not h.rest then
    error('a lease of ' .. KEYS[1] .. ' is not readable')
  end
  if sub(h.set, 1, 1) == '@' then
    h.set, h.attached = '', sub(h.set, 2)
  end
  h.seq = tonumber(seq) or h.joined_at + 1
  return h
end

-- Makes a holding text again.
function record.text_of(h)
  local text = fmt('%s%016.0f%s%s%s%016.0f%016.0f%s%s%s%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s',
    h.token, h.expires_at, h.secret, h.lease, h.stamp, h.acquired_at, h.joined_at,
    h.mode, h.provisional and 'p' or h.claimed and (h.told and 'C' or 'c') or h.told and 'F' or 'f', h.keep, h.gateway, h.seq == h.joined_at + 1 and '' or fmt('%.0f', h.seq),
    h.limit, h.slot, h.hold, h.ttl, h.grant_ttl, h.max_hold,
    h.attached == '' and h.set or '@' .. h.attached, h.rest)
  h.text = text
  return text
end

-- Returns the record of a name with nothing: broken, admitted, born and last are
-- texts as stored; gateways are those with connected places or provisional leases;
-- one is the only holder and text how it is stored.
function record.new()
  return {
    broken = '', admitted = '0000000000000000', idle_since = 0, born = now_text, last = '0000000000000000',
    queue_last = 0, stuck = 0, rest_till = 0, ended = 0, gateways = {}, n = 0, queued = 0, resting = 0, one = false, text = '',
  }
end

function record.load()
  local r, kind, count, last = record.new(), sub(stored, 1, 1), sub(stored, 2, 2), -1
  r.admitted, r.idle_since = sub(stored, 3, 18), tonumber(sub(stored, 19, 34))
  r.born, r.last = sub(stored, 35, 50), sub(stored, 51, 66)
  r.ended = tonumber(r.last)
  if count ~= '0' then
    last = -16 * count - 1
    r.broken = sub(stored, last + 1)
  end
  if kind == 'x' then
    r.ended, r.idle_since = r.idle_since, 0
    r.n, r.text = 1, sub(stored, 51, last)
  elseif kind == 'q' then
    r.queue_last, r.stuck, r.rest_till = tonumber(sub(stored, 67, 82)), tonumber(sub(stored, 83, 98)), tonumber(sub(stored, 99, 114))
    r.ended = tonumber(sub(stored, 115, 130))
    local all, n, resting, at = string.match(stored, '^([^\n]*)\n(%d+)\n(%d+)\n()', 131)
    for id, places, leases in string.gmatch(all, '([^:]+):(%d+):(%d+);') do
      r.gateways[id] = {places = tonumber(places), leases = tonumber(leases)}
      r.queued = r.queued + places
    end
    r.n, r.resting = tonumber(n), tonumber(resting)
    r.text = r.n == 1 and sub(stored, at, last) or ''
  elseif kind ~= '-' then
    error('the record ' .. KEYS[1] .. ' is not readable')
  end
  r.one = r.n == 1 and record.parse(r.text)
  t.record, t.was_held, t.was_due = r, r.n > 0, kind ~= '-'
end

-- Returns the record as text, of a kind that can say it.
function record.encode()
  local r = t.record
  local start, idle = #r.broken / 16 .. r.admitted, fmt('%016.0f', r.idle_since) .. r.born
  if r.queued + r.resting == 0 then
    if r.n == 0 then
      return '-' .. start .. idle .. r.last .. r.broken
    end
    if r.n == 1 and r.one.mode == 'x' and not r.one.provisional and r.one.set .. r.one.attached == '' and r.one.token == r.last
      and r.stuck == 0 then
      return 'x' .. start .. fmt('%016.0f', r.ended) .. r.born .. r.text .. r.broken
    end
  end
  local all = ''
  for id, g in pairs(r.gateways) do
    all = all .. id .. ':' .. g.places .. ':' .. g.leases .. ';'
  end
  return 'q' .. start .. idle .. r.last .. fmt('%016.0f%016.0f%016.0f%016.0f', r.queue_last, r.stuck, r.rest_till, r.ended)
    .. all .. '\n' .. r.n .. '\n' .. r.resting .. '\n' .. r.text .. r.broken
end

-- Counts what a gateway has here.
function record.count(id, places, leases)
  local all = t.record.gateways
  local g = all[id]
  if not g then
    g = {places = 0, leases = 0}
    all[id] = g
  end
  g.places, g.leases = g.places + places, g.leases + leases
  if g.places + g.leases == 0 then
    all[id] = nil
  end
end

if stored then
  record.load()
  if t.record.stuck == AT_ONCE then
    t.room = 0 -- expire.lua goes on with it: many other operations at once are not to do so as well
  end
end
