-- All events of one stream of a run, in order, in one round trip.
-- KEYS[1] the run's log   KEYS[2] its index   ARGV[1] stream
local row = redis.call('HGET', KEYS[2], ARGV[1])
local entries = {}
for version = 1, row and tonumber(string.match(row, '^%d+')) or 0 do
  local at = redis.call('HGET', KEYS[2], ARGV[1] .. '/' .. version)
  entries[version] = redis.call('XRANGE', KEYS[1], at .. '-0', at .. '-0')[1]
end
return entries
