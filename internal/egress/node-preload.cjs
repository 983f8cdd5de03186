// Node before 24 reads no HTTPS_PROXY: this sends https requests, fetch's too, through the
// credential gateway that patchbay egress run names.
'use strict';
const http = require('node:http');
const https = require('node:https');
const tls = require('node:tls');
const { Readable } = require('node:stream');

const proxy = process.env.HTTPS_PROXY ? new URL(process.env.HTTPS_PROXY) : null;
const direct = (process.env.NO_PROXY || '').split(',').map((s) => s.trim().toLowerCase()).filter(Boolean);
const past = (host) => direct.some((d) => host === d || host.endsWith('.' + d.replace(/^\./, '')));

if (proxy) {
  const auth = 'Basic ' + Buffer.from(decodeURIComponent(proxy.username) + ':' + decodeURIComponent(proxy.password)).toString('base64');

  class Gateway extends https.Agent {
    createConnection(options, done) {
      const host = options.host || options.hostname;
      if (past(host.toLowerCase())) return super.createConnection(options, done);
      const to = (host.includes(':') ? `[${host}]` : host) + ':' + (options.port || 443);
      const ask = http.request({ host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: to, headers: { Host: to, 'Proxy-Authorization': auth }, agent: false });
      ask.on('connect', (answer, socket) => {
        if (answer.statusCode !== 200) {
          socket.destroy();
          done(new Error(`the credential gateway answered ${answer.statusCode} for ${to}`));
          return;
        }
        const secure = tls.connect({ ...options, socket, servername: /^[\d.]+$|:/.test(host) ? '' : host });
        secure.once('secureConnect', () => done(null, secure));
        secure.once('error', done);
      });
      ask.on('error', done);
      ask.end();
    }
  }

  const agent = new Gateway({ keepAlive: true });
  https.globalAgent = agent;
  const plain = globalThis.fetch;
  const send = (request, url, left) => new Promise((resolve, reject) => {
    const headers = Object.fromEntries(request.headers);
    if (!headers['accept-encoding']) headers['accept-encoding'] = 'identity'; // nothing here decodes
    const out = https.request(url, { method: request.method, headers, agent, signal: request.signal }, (answer) => {
      const { statusCode: status, headers: h } = answer;
      if ([301, 302, 303, 307, 308].includes(status) && h.location && request.redirect === 'follow') {
        answer.resume();
        const next = new URL(h.location, url);
        if (left === 0 || !['GET', 'HEAD'].includes(request.method)) {
          reject(new TypeError('fetch failed: a redirect that is not followed'));
          return;
        }
        const again = new Request(next, { method: request.method, headers: request.headers });
        if (next.origin !== url.origin) again.headers.delete('authorization');
        resolve(next.protocol === 'https:' ? send(again, next, left - 1) : plain(again));
        return;
      }
      const list = [];
      for (let i = 0; i < answer.rawHeaders.length; i += 2) list.push([answer.rawHeaders[i], answer.rawHeaders[i + 1]]);
      resolve(new Response([101, 204, 205, 304].includes(status) ? null : Readable.toWeb(answer), { status, statusText: answer.statusMessage, headers: list }));
    });
    out.on('error', (cause) => reject(new TypeError('fetch failed', { cause })));
    if (request.body) Readable.fromWeb(request.body).pipe(out);
    else out.end();
  });
  globalThis.fetch = async (input, init) => {
    const request = new Request(input, init);
    const url = new URL(request.url);
    return url.protocol === 'https:' && !past(url.hostname) ? send(request, url, 20) : plain(request);
  };
}
