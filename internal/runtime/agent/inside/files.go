package inside

import (
	"errors"
	"io"
	"net/http"

	"github.com/pkg/sftp"
)

// files serves SFTP on the conversation, as the workspace's user.
func (s *Server) files(w http.ResponseWriter, r *http.Request) {
	conn, ok := s.converse(w, r)
	if !ok {
		return
	}
	defer conn.Close()
	server, err := sftp.NewServer(conn, sftp.WithServerWorkingDirectory(s.folder("")), sftp.WithAllocator())
	if err != nil {
		s.cfg.Log.Error("start the SFTP server failed", "err", err)
		return
	}
	defer server.Close()
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		s.cfg.Log.Debug("serve SFTP failed", "err", err)
	}
}
