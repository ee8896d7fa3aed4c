package api

import (
	"crypto/sha256"
	"encoding/base32"
)

// LoginCode returns the code that both a program and the page show for a login by a browser,
// such as ABCD-2345, so that the user can compare them. challenge is the one in the page's address.
func LoginCode(challenge string) string {
	sum := sha256.Sum256([]byte(challenge))
	code := base32.StdEncoding.EncodeToString(sum[:5])
	return code[:4] + "-" + code[4:]
}
