-- A script for wrk: each request goes to one of the hosts in a file, chosen at random. Each
-- line of the file is a host, a space, and the cookie of that host. There are at least 1,000
-- requests, which differ in a field of the header: the server answers a request faster if it
-- repeats the header of the one before, which those to random hosts hardly ever do.
local requests = {}
local atLeast = 1000

function init(args)
  math.randomseed(tonumber(tostring({}):match("0x(%x+)"), 16) % 2147483647)
  local path = wrk.path
  repeat
    for line in io.lines(args[1]) do
      local host, cookie = line:match("^(%S+) (.*)$")
      wrk.headers["Host"] = host
      wrk.headers["Cookie"] = cookie
      wrk.headers["X-Number"] = #requests
      requests[#requests + 1] = wrk.format("GET", path)
    end
  until #requests >= atLeast
end

function request()
  return requests[math.random(#requests)]
end
