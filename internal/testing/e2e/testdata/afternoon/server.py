"""Serves the repositories of a folder with git http-backend: server.py PORT FOLDER."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def answer(self):
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length", 0))
        env = os.environ | {
            "GIT_PROJECT_ROOT": sys.argv[2],
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_USER": "ann",
            "REMOTE_ADDR": self.client_address[0],
        }
        out = subprocess.run(["git", "http-backend"], env=env, input=self.rfile.read(length), stdout=subprocess.PIPE, check=True)
        head, _, body = out.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
