-- Stands in every script behind the prelude, and in rich(): constants, and what
-- both kinds of rules have in common.

local TOMBSTONE_TTL = 300000000 -- us, fencing.TombstoneTTL
local FORGET_AFTER = 86400000000 -- us, fencing.ForgetAfter
local TOMBSTONE_PX, FORGET_PX = '300000', '86400000' -- the same in ms
local NEW = 'x000000000000000000000000000000000' -- how the first record of a name begins
local NO_STAMP = '----------------'
local MAX_FLOOR_LEAD = 3600000000 -- us, fencing.MaxFloorLead
local MAX_SKEW = tonumber(sub(ARGV[2], 28)) -- us
local MAX_TOKEN = 9007199254740991 -- fencing.MaxToken
local MAX_BROKEN = 8 -- of a record, for retried breaks

-- What the reply will say beside the code.
local flags, detail = skewed and 's' or '', ''

-- The only helper of replies.
local function head(code)
  return code .. '\n' .. now_text .. '\n' .. flags .. '\n' .. detail
end

-- Keys end by their own TTL only as late garbage collection, and not before the
-- least: what is in them says until when it counts.
local function px(us, least, least_px)
  return us <= least and least_px or fmt('%.0f', math.ceil(us / 1000))
end

-- Adds an end, an item E, and the lease to the history. It is cut, and looked
-- after, only now and then.
local function remember(item, lease)
  local MAX_HISTORY = 16 -- fencing.MaxHistory
  local MAX_HISTORIES = 64 -- names of a partition that have one: the bound in all
  local prefix = sub(KEYS[2], 1, -6)
  local key = prefix .. 'history:' .. ARGV[3]
  local count = call('RPUSH', key, item, lease)
  if count > 2 and count < MAX_HISTORY * 4 then
    return
  end
  call('LTRIM', key, -2 * MAX_HISTORY, -1)
  call('ZADD', prefix .. 'histories', now_text, ARGV[3])
  if call('ZCARD', prefix .. 'histories') > MAX_HISTORIES then
    call('DEL', prefix .. 'history:' .. call('ZPOPMIN', prefix .. 'histories')[1])
  end
end

-- Returns what a message to all who watch begins with: see message.go. Messages
-- are sent by pcall: who may not send one is told of it elsewhere, and a script
-- is not to end in the middle. Two steps
-- at one instant are only told apart where a test's clock makes that possible.
local function news()
  local step = ARGV[8] and call('INCR', KEYS[2] .. ':steps') .. '-' or ''
  return now_text .. KEYS[2] .. '\n' .. step .. '\n' .. ARGV[3] .. '\n'
end
