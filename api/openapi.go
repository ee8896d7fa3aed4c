package api

import _ "embed"

// OpenAPI is the OpenAPI 3.1 document of the API.
//
//go:embed openapi.json
var OpenAPI []byte
