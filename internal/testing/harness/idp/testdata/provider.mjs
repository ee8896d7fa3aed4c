// An OpenID provider for tests. Its argument is JSON: client_id, client_secret,
// redirect_uris, backchannel_logout_uri, claims_in_id_token and auth_method. It prints its issuer.
// Below /control tests change its users, and how it answers. It has the addresses of GitLab, too.
import { createServer } from 'node:http';
import { createPrivateKey, generateKeyPairSync, randomBytes } from 'node:crypto';
import Provider from 'oidc-provider';

const config = JSON.parse(process.argv[2]);
let users = {}; // by subject: preferred_username, email, groups, roles, hd, and disabled
let down = false;
let answer; // that replaces the issuer in answers to browsers
let counts = {};
let tokens = {}; // lifetime and delay in seconds, lose: how many answers, and keep_refresh
const gitlab = { '/oauth/authorize': '/auth', '/oauth/token': '/token', '/oauth/revoke': '/token/revocation' };

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  // In text: Node 20 waits for itself for ever if it collects garbage while it exports, as JWK, a key
  // object that it has just generated.
  const { privateKey: text } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  const privateKey = createPrivateKey(text);
  const provider = new Provider(issuer, {
    clients: [{
      client_id: config.client_id,
      client_secret: config.client_secret,
      redirect_uris: config.redirect_uris,
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      ...(config.auth_method && { token_endpoint_auth_method: config.auth_method }),
      ...(config.backchannel_logout_uri && {
        backchannel_logout_uri: config.backchannel_logout_uri,
        backchannel_logout_session_required: true,
      }),
    }],
    jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), kid: 'test', use: 'sig', alg: 'RS256' }] },
    cookies: { keys: [randomBytes(16).toString('hex')] },
    pkce: { required: () => true },
    scopes: ['openid', 'offline_access', 'profile', 'email', 'groups'],
    claims: { openid: ['sub', 'sid'], profile: ['preferred_username', 'roles', 'groups'], email: ['email', 'hd'], groups: ['groups'] },
    conformIdTokenClaims: !config.claims_in_id_token,
    issueRefreshToken: () => true,
    rotateRefreshToken: () => !tokens.keep_refresh,
    features: {
      devInteractions: { enabled: true },
      backchannelLogout: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      revocation: { enabled: true },
    },
    ttl: { AccessToken: () => tokens.lifetime || 60, AuthorizationCode: 60, IdToken: 60, RefreshToken: 3600, Session: 3600, Grant: 3600, Interaction: 600 },
    findAccount: (_, id) => {
      const user = users[id];
      if (!user || user.disabled) return undefined;
      return { accountId: id, claims: () => ({ sub: id, ...user }) };
    },
    // Every user has agreed already.
    loadExistingGrant: async (ctx) => {
      const id = ctx.oidc.session.grantIdFor(ctx.oidc.client.clientId);
      const grant = (id && await ctx.oidc.provider.Grant.find(id)) ||
        new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
      grant.addOIDCScope('openid offline_access profile email groups');
      await grant.save();
      return grant;
    },
  });
  for (const event of ['server_error', 'backchannel.error']) {
    provider.on(event, (_, error) => console.error(event, error));
  }
  const serve = provider.callback();
  server.on('request', async (req, res) => {
    const path = new URL(req.url, issuer).pathname;
    if (path.startsWith('/control')) {
      let body = '';
      for await (const chunk of req) body += chunk;
      const change = JSON.parse(body || '{}');
      if (change.users) users = change.users;
      if ('down' in change) down = change.down;
      if ('answer' in change) answer = change.answer;
      if (change.tokens) tokens = change.tokens;
      res.setHeader('Content-Type', 'application/json');
      res.end(JSON.stringify(counts));
      return;
    }
    counts[path] = (counts[path] || 0) + 1;
    if (down) {
      res.statusCode = 503;
      res.end('down');
      return;
    }
    if (path === '/api/v4/user') {
      const token = await provider.AccessToken.find((req.headers.authorization || '').replace(/^Bearer /, ''));
      const user = token && !token.isExpired && users[token.accountId];
      res.statusCode = user ? 200 : 401;
      res.setHeader('Content-Type', 'application/json');
      res.end(JSON.stringify(user ? { username: user.preferred_username } : { message: '401 Unauthorized' }));
      return;
    }
    if (path === '/oauth/token') {
      if (tokens.delay) await new Promise((done) => setTimeout(done, tokens.delay * 1000));
      if (tokens.lose > 0) {
        tokens.lose--;
        res.end = () => req.socket.destroy();
      }
    }
    if (gitlab[path]) req.url = req.url.replace(path, gitlab[path]);
    if (answer) {
      const setHeader = res.setHeader.bind(res);
      res.setHeader = (name, value) => setHeader(name, name.toLowerCase() === 'location' ?
        String(value).replace(encodeURIComponent(issuer), encodeURIComponent(answer)) : value);
    }
    serve(req, res);
  });
  console.log(issuer);
});
