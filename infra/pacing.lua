-- The pace of one place of a run: who may ask it now. One script for all that is done to it; times in ms of the server.
--
-- KEYS[1] places of the run (a hash)   KEYS[2] what is known of this one (a hash)
-- KEYS[3] requests under way, until when they count (a sorted set)
-- KEYS[4] requests of the past minute by when they began (a sorted set)   KEYS[5] their tokens (a hash)
-- KEYS[6] requests that wait, in order (a sorted set)   KEYS[7] until when each waits and for how many tokens (a hash)
-- ARGV[1] what is done, ARGV[2] the request, then
--   look   its tokens, requests and tokens a minute, at once (each 0 = no bound), '1' = adaptive, where that begins,
--          ms that a request counts without renewal, ms that one waits without another look, ms of a minute,
--          the place's digest, its description
--          -> {1 = its turn, ms until another look (0 = when a slot is free), bound at once, times halved before}
--   end    'answered', 'limited' or 'neither', tokens ('' = as reserved), ms that nobody shall ask, '1' = adaptive,
--          where that begins, at once, times halved before
--          -> the new bound, where it has changed
--   renew  ms that it counts   -> nothing
--   leave                      -> nothing
local places, state, held, minute, tokens, waiting, wants = unpack(KEYS)
local op, request = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- A run's pace is forgotten some time after its last request.
local KEPT_MS = 600000

local function kept()
  for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], KEPT_MS) end
end

local function at_once(adaptive, first, cap)
  if adaptive ~= '1' then return cap end
  local limit = tonumber(redis.call('HGET', state, 'limit') or first)
  if cap > 0 and limit > cap then limit = cap end
  return limit
end

local function forget_wait(one)
  redis.call('ZREM', waiting, one)
  redis.call('HDEL', wants, one)
end

-- How many wait before this request, and for how many tokens together.
local function before()
  local count, sum = 0, 0
  for _, one in ipairs(redis.call('ZRANGE', waiting, 0, -1)) do
    if one == request then break end
    local waits, want = string.match(redis.call('HGET', wants, one) or '0 0', '^(%d+) (%d+)$')
    if tonumber(waits) < now then
      forget_wait(one)
    else
      count, sum = count + 1, sum + tonumber(want)
    end
  end
  return count, sum
end

-- The tokens of the past minute, once what is older is forgotten.
local function past_tokens(length)
  -- `-x` of nothing would be written as -0, which Redis takes for no integer: so 0 - x.
  local old = redis.call('ZRANGEBYSCORE', minute, '-inf', now - length)
  for _, one in ipairs(old) do
    redis.call('HINCRBY', state, 'tokens', 0 - tonumber(redis.call('HGET', tokens, one) or 0))
    redis.call('HDEL', tokens, one)
  end
  if #old > 0 then redis.call('ZREMRANGEBYSCORE', minute, '-inf', now - length) end
  return tonumber(redis.call('HGET', state, 'tokens') or 0)
end

-- Until the oldest requests that hold back `over` requests, or `need` tokens, are over a minute old.
local function until_free(length, over, need)
  local wait = 0
  if over > 0 then
    local one = redis.call('ZRANGE', minute, over - 1, over - 1, 'WITHSCORES')
    wait = (one[2] and one[2] + length - now) or length
  end
  local place = 0
  while need > 0 do
    local one = redis.call('ZRANGE', minute, place, place, 'WITHSCORES')
    if not one[2] then return math.max(wait, place > 0 and 1 or length) end
    need = need - tonumber(redis.call('HGET', tokens, one[1]) or 0)
    wait = math.max(wait, one[2] + length - now)
    place = place + 1
  end
  return wait
end

if op == 'look' then
  local want, rpm, tpm, cap = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local length = tonumber(ARGV[11])
  local limit = at_once(ARGV[7], ARGV[8], cap)
  local halved = tonumber(redis.call('HGET', state, 'halved') or 0)
  -- A command whose reply was lost is sent again.
  if redis.call('ZSCORE', held, request) then return {1, 0, limit, halved} end
  redis.call('ZREMRANGEBYSCORE', held, '-inf', now)
  local ahead, ahead_tokens = before()
  local spent = past_tokens(length)
  local wait, blocked = 0, false
  if limit > 0 and redis.call('ZCARD', held) + ahead >= limit then blocked = true end
  local over = rpm > 0 and redis.call('ZCARD', minute) + ahead + 1 - rpm or 0
  local need = 0
  if tpm > 0 then
    -- One that is larger than the bound waits until it is alone.
    want = math.min(want, tpm)
    need = spent + ahead_tokens + want - tpm
  end
  if over > 0 or need > 0 then
    wait, blocked = math.max(1, until_free(length, over, need)), true
  end
  local held_off = tonumber(redis.call('HGET', state, 'until') or 0) - now
  if held_off > 0 then wait, blocked = math.max(wait, held_off), true end
  redis.call('HSETNX', places, ARGV[12], ARGV[13])
  if blocked then
    if not redis.call('ZSCORE', waiting, request) then
      redis.call('ZADD', waiting, redis.call('HINCRBY', state, 'tickets', 1), request)
    end
    redis.call('HSET', wants, request, string.format('%.0f %.0f', now + ARGV[10], want))
  else
    forget_wait(request)
    redis.call('ZADD', held, now + ARGV[9], request)
    redis.call('ZADD', minute, now, request)
    redis.call('HSET', tokens, request, want)
    redis.call('HINCRBY', state, 'tokens', want)
  end
  redis.call('HSET', state, 'adaptive', ARGV[7], 'length', length)
  kept()
  return {blocked and 0 or 1, math.ceil(wait), limit, halved}
end

if op == 'end' then
  local outcome, used, held_off_ms = ARGV[3], ARGV[4], tonumber(ARGV[5])
  local adaptive, first, cap, halved = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
  local busy = redis.call('ZCARD', held)
  redis.call('ZREM', held, request)
  local reserved = redis.call('HGET', tokens, request)
  if reserved and used ~= '' then
    redis.call('HSET', tokens, request, used)
    redis.call('HINCRBY', state, 'tokens', used - reserved)
  end
  if held_off_ms > 0 then
    local off = math.max(now + held_off_ms, tonumber(redis.call('HGET', state, 'until') or 0))
    redis.call('HSET', state, 'until', string.format('%.0f', off))
  end
  kept()
  if adaptive ~= '1' or outcome == 'neither' then return false end
  local limit = at_once(adaptive, first, cap)
  local changed = limit
  if outcome == 'limited' then
    if tonumber(redis.call('HGET', state, 'halved') or 0) ~= halved then return false end
    changed = math.max(1, math.floor(limit / 2))
    redis.call('HINCRBY', state, 'halved', 1)
    redis.call('HSET', state, 'answered', 0)
  elseif busy >= limit and redis.call('HINCRBY', state, 'answered', 1) >= limit then
    changed = cap > 0 and math.min(limit + 1, cap) or limit + 1
    redis.call('HSET', state, 'answered', 0)
  end
  redis.call('HSET', state, 'limit', changed)
  return changed ~= limit and changed or false
end

if op == 'renew' then
  redis.call('ZADD', held, now + ARGV[3], request)
  kept()
elseif op == 'leave' then
  forget_wait(request)
  if redis.call('ZREM', held, request) == 1 then
    redis.call('HINCRBY', state, 'tokens', 0 - tonumber(redis.call('HGET', tokens, request) or 0))
    redis.call('HSET', tokens, request, 0)
  end
end
return false
