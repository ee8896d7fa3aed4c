package api

import "time"

// SSHProtocol is the subprotocol of the WebSocket at GET /workspaces/{id}/ssh, whose
// binary messages are the bytes of an SSH connection.
const SSHProtocol = "codehub-ssh"

// SSHServer is the answer of GET /ssh.
type SSHServer struct {
	Host        string `json:"host"` // empty: the server has no SSH listener
	Port        int    `json:"port"`
	HostKey     string `json:"host_key"` // as in authorized_keys
	Fingerprint string `json:"fingerprint"`
}

// AddSSHKey is the body of POST /keys.
type AddSSHKey struct {
	Name      string `json:"name,omitempty"` // empty: the key's comment, or its type
	PublicKey string `json:"public_key"`
}

// SSHKey is a public key with which its user logs in by SSH.
type SSHKey struct {
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	PublicKey   string     `json:"public_key"`
	Fingerprint string     `json:"fingerprint"`
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   *time.Time `json:"expires_at"` // null: never
	LastUsedAt  *time.Time `json:"last_used_at"`
}

// SSHKeyList is the answer of GET /keys.
type SSHKeyList struct {
	Keys       []SSHKey `json:"keys"`
	NextCursor string   `json:"next_cursor"`
}
