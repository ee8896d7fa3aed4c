package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
)

// partSigner signs the URLs of an upload's parts, which differ only in their
// number. The client would take a quarter of a second for ten thousand, before
// packing can start.
type partSigner struct {
	url       [2]string // before and after the number, without the signature
	canonical [2]string // likewise, of the canonical request
	head      string    // of the string to sign
	key       []byte
}

// partSigner returns a signer from the URL of part 1, or nil if it would sign
// that URL differently.
func (s *S3) partSigner(first string) *partSigner {
	const number = "&partNumber=1&"
	creds, err := s.core.GetCreds()
	u, malformed := url.Parse(first)
	if err != nil || malformed != nil {
		return nil
	}
	unsigned, signature, ok := strings.Cut(first, "&X-Amz-Signature=")
	q := u.Query()
	credential := strings.SplitN(q.Get("X-Amz-Credential"), "/", 2)
	if !ok || len(credential) != 2 || strings.Count(unsigned, number) != 1 {
		return nil
	}
	scope := credential[1]
	canonical := "PUT\n" + u.EscapedPath() + "\n" + unsigned[strings.Index(unsigned, "?")+1:] +
		"\nhost:" + u.Host + "\n\nhost\nUNSIGNED-PAYLOAD"
	p := &partSigner{
		head: q.Get("X-Amz-Algorithm") + "\n" + q.Get("X-Amz-Date") + "\n" + scope + "\n",
		key:  []byte("AWS4" + creds.SecretAccessKey),
	}
	for part := range strings.SplitSeq(scope, "/") {
		p.key = mac(p.key, part)
	}
	p.url[0], p.url[1], _ = strings.Cut(unsigned, number)
	p.canonical[0], p.canonical[1], _ = strings.Cut(canonical, number)
	if p.sign(1) != unsigned+"&X-Amz-Signature="+signature {
		return nil
	}
	return p
}

// sign returns the signed URL of a part.
func (p *partSigner) sign(n int) string {
	number := "&partNumber=" + strconv.Itoa(n) + "&"
	sum := sha256.Sum256([]byte(p.canonical[0] + number + p.canonical[1]))
	signature := mac(p.key, p.head+hex.EncodeToString(sum[:]))
	return p.url[0] + number + p.url[1] + "&X-Amz-Signature=" + hex.EncodeToString(signature)
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
