// Package sshgate lets SSH clients into workspaces: by an SSH listener, where a
// registered public key says who the user is, and on connections that the API has
// authenticated. It terminates SSH and asks the workspace's agent for commands, files
// and connections; the workspace itself runs no SSH server. docs/ssh.md describes it.
package sshgate
