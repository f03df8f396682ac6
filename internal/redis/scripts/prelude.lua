-- Stands before every script of this directory: the clock and its guard, and
-- the reply. fencing.Step is the specification; what is decided here must be
-- decided alike there. record.lua follows where a name's record is judged.
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
--   5  fencepost:{N}:ended:       what a tombstone's key starts with; followed
--                                 by <public>:<name>
-- ARGV, first part; the second part begins at 6 and differs by script
--   1  now       us, the store's clock; empty: Redis's own
--   2  sent      us, the gateway's clock when it sent the command
--   3  max_skew  us, the largest difference allowed between the two
--   4  floor     the highest token the gateway has seen from this partition
--   5  name
-- Reply {head, ended, record...}
--   head    code, reason, now, late, token, margin, flags, separated by newlines
--     reason  of lease_lost; of clock_skew: '' the clocks differ, 'floor' the
--             floor is refused, 'exhausted' no token is left
--     late    us since the lease ended (lease_lost by time)
--     token   of the newer grant (lease_lost, superseded)
--     margin  us a renewed lease still had to live
--     flags   'f' this request made the grant, 's' the clocks differ
--   ended   a lease that this step ended: reason, at, and the record as it was;
--           '' if none
--   record  the record as it now is; absent if there is none or none is asked for
--
-- Numbers become text by '%.0f': anything else loses digits above 2^53. What is
-- only passed on stays text. Most of the time of a script goes into functions
-- made and texts cut up, so there are few of both.

local call, fmt = redis.call, string.format

local now, now_text = tonumber(ARGV[1]), ARGV[1]
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
  now_text = fmt('%.0f', now)
end
local skewed = math.abs(now - ARGV[2]) > tonumber(ARGV[3])

-- What the reply will say beside the code.
local reason, late, current_token, margin, flags, ended = '', '0', '0', '0', skewed and 's' or '', ''

-- The only reply helper.
local function reply(code, record)
  return {code .. '\n' .. reason .. '\n' .. now_text .. '\n' .. late .. '\n' .. current_token .. '\n' .. margin .. '\n'
    .. flags, ended, record or nil}
end
