-- Let go of the beginning of a run's log, which lies in its archive. Some of its events stay, in another key.
--
-- KEYS[1] the run's log   KEYS[2] its index   KEYS[3] events that stay (a stream)
-- ARGV[1] the last position to go   ARGV[2...] positions among them whose events stay, ascending
--
-- Of the index it needs '@head', '@archived' -> last position that the archive is recorded to hold; it sets '@trimmed'.
-- Answers the last position that is gone.
local log, index, kept, upto = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local head, archived, trimmed = unpack(redis.call('HMGET', index, '@head', '@archived', '@trimmed'))
head, archived, trimmed = tonumber(head or '0'), tonumber(archived or '0'), tonumber(trimmed or '0')
if upto > archived or upto >= head then
  return redis.error_reply('BROKEN position ' .. upto .. ' is not archived: ' .. archived .. ' of ' .. head .. ' are')
end
if upto <= trimmed then return trimmed end
if redis.call('XLEN', log) ~= head - trimmed then
  return redis.error_reply('BROKEN its stream was cut by hand')
end
for i = 2, #ARGV do
  if tonumber(ARGV[i]) > trimmed then
    local entry = redis.call('XRANGE', log, ARGV[i] .. '-0', ARGV[i] .. '-0')[1]
    redis.call('XADD', kept, entry[1], unpack(entry[2]))
  end
end
redis.call('XTRIM', log, 'MINID', (upto + 1) .. '-0')
redis.call('HSET', index, '@trimmed', upto)
return upto
