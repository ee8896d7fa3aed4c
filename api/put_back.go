package api

// PutBack is the body of POST /workspaces/{id}/backups/{backup}/put: a file, link or folder of the
// backup is put into the running workspace.
type PutBack struct {
	Path    string `json:"path"`              // in the backup
	To      string `json:"to,omitempty"`      // in the home; empty: path
	Replace bool   `json:"replace,omitempty"` // what is at to is kept beside it under another name; otherwise it is an error
}

// PutBackResult is the answer to PutBack.
type PutBackResult struct {
	Path string `json:"path"` // in the home
	Kept string `json:"kept"` // path of what was there before; empty: nothing
}
