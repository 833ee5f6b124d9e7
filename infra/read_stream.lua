-- All events of one stream of a run, in order, in one round trip; of one that was archived and trimmed its position.
-- KEYS[1] the run's log   KEYS[2] its index   KEYS[3] events that stay of the archived ones   ARGV[1] stream
-- archived_rows.lua precedes this script.
local row, trimmed = unpack(redis.call('HMGET', KEYS[2], ARGV[1], '@trimmed'))
trimmed = tonumber(trimmed or '0')
row = row or past_row(KEYS[2], ARGV[1])
local entries = {}
for version = 1, row and tonumber(string.match(row, '^%d+')) or 0 do
  local field = ARGV[1] .. '/' .. version
  local at = redis.call('HGET', KEYS[2], field) or past_place(KEYS[2], field)
  local archived = tonumber(at) <= trimmed
  local entry = redis.call('XRANGE', archived and KEYS[3] or KEYS[1], at .. '-0', at .. '-0')[1]
  if not entry and not archived then
    return redis.error_reply('BROKEN the index names position ' .. at .. ', which the log does not hold')
  end
  entries[version] = entry or tonumber(at)
end
return entries
