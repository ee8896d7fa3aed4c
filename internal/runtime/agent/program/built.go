//go:build agent

package program

import _ "embed"

//go:embed codehub-agent.gz
var content []byte

func compressed() ([]byte, error) { return content, nil }
