-- Stands before every script of this directory: the clock and its guard, and
-- the reply. fencing.Step is the specification; what is decided here must be
-- decided alike there. record.lua follows where a name's record is judged, and
-- lost.lua where a lease may have ended.
--
-- The first line of a script becomes the first line of the whole. It carries no
-- `no-writes`, so that Redis runs none of them on a replica, whose data is old;
-- `allow-oom` marks those that free memory or only read.
--
-- KEYS, all in the slot of partition N
--   1  fencepost:{N}:lock:<name>  string, the record of the name
--   2  fencepost:{N}:token        string, the highest token issued
--   3  fencepost:{N}:expiry       zset, name -> expires_at; held names only
--   4  fencepost:{N}:names        zset, name -> 0; held names only
--   5  fencepost:{N}:ended:<name>:<public>  string, the tombstone of the lease
--                                 in question; zeros where there is none
-- ARGV, first part; the second part begins at 4 and differs by script
--   1  sent      us, the gateway's clock when it sent the command
--   2  max_skew  us, the largest difference allowed between the two clocks
--   3  name
--   9  now       us, the store's clock, 16 digits; absent: Redis's own
-- Reply head, or {head, record...} where there is a record to show or a lease
-- has ended
--   head    code, now, flags, ended, detail, separated by newlines
--     flags   'f' this request made the grant, 'g' it made it now, 's' the
--             clocks differ
--     ended   how a lease ended that this step ended; '' if none did
--     detail  a few more lines, which depend on the code
--       ok          of 'g': token and expires_at, 16 digits each; of a
--                   renewal: the us the lease still had to live
--       lease_lost  reason, us since the lease ended by time, token of the
--                   newer grant; trailing lines may be missing
--       clock_skew  '' the clocks differ, 'floor' the floor is refused,
--                   'exhausted' no token is left
--   record  the record as it now is, '' if there is none or none is asked for;
--           behind it, where a lease ended, the record as it was before
--
-- Numbers become text by '%.0f': anything else loses digits above 2^53. Instants
-- and tokens have 16 digits, so that a field is found by its place. Of the time
-- of a script most goes into calls and into texts that are made: what is only
-- passed on is neither taken apart nor put together.

local call, sub, fmt = redis.call, string.sub, string.format

local now, now_text = tonumber(ARGV[9]), ARGV[9]
if not now then
  local t = call('TIME')
  now, now_text = t[1] * 1000000 + t[2], fmt('%s%06d', t[1], t[2])
end
local skewed = math.abs(now - ARGV[1]) > tonumber(ARGV[2])

-- What the reply will say beside the code.
local flags, ended, detail = skewed and 's' or '', '', ''

-- The only reply helper.
local function reply(code, record, was)
  local head = code .. '\n' .. now_text .. '\n' .. flags .. '\n' .. ended .. '\n' .. detail
  if was then
    return {head, record or '', was}
  end
  return record and {head, record} or head
end
