-- A script for wrk: each request goes to one of the hosts in a file, chosen at random. Each
-- line of the file is a host, a space, and the cookie of that host.
local requests = {}

function init(args)
  math.randomseed(tonumber(tostring({}):match("0x(%x+)"), 16) % 2147483647)
  local path = wrk.path
  for line in io.lines(args[1]) do
    local host, cookie = line:match("^(%S+) (.*)$")
    wrk.headers["Host"] = host
    wrk.headers["Cookie"] = cookie
    requests[#requests + 1] = wrk.format("GET", path)
  end
end

function request()
  return requests[math.random(#requests)]
end
